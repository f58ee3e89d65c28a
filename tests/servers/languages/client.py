"""One lock of one Python client, driven line by line on standard input.

    client.py KIND KEY TTL_MS URL...

KIND is `lock` (the lock of the `redis` package, on one server), `loop` (Redlock as people write it by hand) or `pottery`
(its Redlock). Commands: `acquire SECONDS` answers `held` or `refused`; `release` answers `released` or `not ours`; `extend`
answers `extended` or `not ours`.
"""

import random
import sys
import time
import uuid

import redis


class Lock:
    """`redis.lock.Lock`: one server, its own waiting."""

    def __init__(self, key, ttl, clients):
        self.lock = clients[0].lock(key, timeout=ttl, sleep=0.01)

    def acquire(self, wait):
        return self.lock.acquire(blocking=True, blocking_timeout=wait)

    def release(self):
        try:
            self.lock.release()
            return True
        except redis.exceptions.LockError:
            return False

    def extend(self, ttl):
        try:
            return self.lock.extend(ttl, replace_ttl=True)
        except redis.exceptions.LockError:
            return False


class Loop:
    """A quorum of `SET NX PX`, and scripts that compare."""

    DELETE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
    EXPIRE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0"

    def __init__(self, key, ttl, clients):
        self.key, self.ttl, self.clients, self.value = key, ttl, clients, None
        self.needed = len(clients) // 2 + 1

    def each(self, command):
        done = 0
        for client in self.clients:
            try:
                done += bool(command(client))
            except redis.exceptions.RedisError:
                pass
        return done >= self.needed

    def acquire(self, wait):
        until = time.monotonic() + wait
        while True:
            self.value, started = uuid.uuid4().hex, time.monotonic()
            millis = int(self.ttl * 1000)
            granted = self.each(lambda client: client.set(self.key, self.value, nx=True, px=millis))
            if granted and time.monotonic() - started < self.ttl * 0.99 - 0.002:
                return True
            self.release()
            if time.monotonic() >= until:
                return False
            time.sleep(random.uniform(0, 0.02))

    def release(self):
        return self.each(lambda client: client.eval(self.DELETE, 1, self.key, self.value))

    def extend(self, ttl):
        millis = int(ttl * 1000)
        return self.each(lambda client: client.eval(self.EXPIRE, 1, self.key, self.value, millis))


class Pottery:
    """`pottery.Redlock`, which puts `redlock:` before its keys."""

    def __init__(self, key, ttl, clients):
        import pottery

        self.released = pottery.ReleaseUnlockedLock
        self.extended = pottery.ExtendUnlockedLock
        name = key.removeprefix("redlock:")
        self.lock = pottery.Redlock(key=name, masters=set(clients), auto_release_time=ttl, num_extensions=1000)

    def acquire(self, wait):
        return self.lock.acquire(blocking=True, timeout=wait)

    def release(self):
        try:
            self.lock.release()
            return True
        except self.released:
            return False

    def extend(self, ttl):
        try:
            self.lock.extend()
            return True
        except self.extended:
            return False


def main():
    kind, key, ttl, urls = sys.argv[1], sys.argv[2], int(sys.argv[3]) / 1000, sys.argv[4:]
    clients = [redis.Redis.from_url(url, socket_timeout=2) for url in urls]
    lock = {"lock": Lock, "loop": Loop, "pottery": Pottery}[kind](key, ttl, clients)
    print("ready", flush=True)
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "acquire":
            answer = "held" if lock.acquire(float(arguments[0])) else "refused"
        elif command == "release":
            answer = "released" if lock.release() else "not ours"
        else:
            answer = "extended" if lock.extend(ttl) else "not ours"
        print(answer, flush=True)


main()
