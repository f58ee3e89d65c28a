-- Release a key on a node that may keep a queue for it: the first live waiter gets it, and without one it is deleted.
-- Takes the owner's own entry out of the queue, so it is also how a waiter leaves.
-- KEYS: key, queue, lives. ARGV: owner, client, length of a hand-over in ms, what stands before a client in its channel.
-- Begins with nobody_waits.lua, which found out whether the key is `mine` and whether the queue `exists`.
-- Answers 1 when deleted, 2 when handed over, 0 where the key was absent, or { value found, -1 }.
local key, queue, lives = KEYS[1], KEYS[2], KEYS[3]
local owner = ARGV[1]
local held, failed = owner, nil
if not mine then held, failed = found(key) end
if failed then return failed end

-- A user that may not look has no queue here either, and must be able to release all the same.
if exists ~= 1 then
    if held == false then return 0 end
    if held ~= owner then return { held, -1 } end
    redis.call('DEL', key)
    return 1
end

-- Takes the owner out of the queue, and gives the key to the first that lives. Returns true if there was one.
local function hand_over()
    redis.call('ZREM', queue, owner .. ARGV[2])
    if held and held ~= owner then return end

    -- Whoever had the last hand-over and neither released it nor holds it now, hangs: so do its other waiters.
    local last = redis.call('HGET', lives, '@')
    if last then
        redis.call('HDEL', lives, '@')
        if string.sub(last, 1, 32) ~= owner then redis.call('HDEL', lives, string.sub(last, 33)) end
    end

    local time = redis.call('TIME')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    while true do
        local first = redis.call('ZPOPMIN', queue)
        local member = first[1]
        if not member then break end
        local client = string.sub(member, 33)
        local look = redis.call('HGET', lives, client)
        if look and now - tonumber(string.sub(look, 2)) <= 3000 then
            local next = string.sub(member, 1, 32)
            -- Releasing must work where memory is full: then nobody is handed anything.
            local set = redis.pcall('SET', key, next, 'PX', ARGV[3])
            if set.err then break end
            redis.pcall('HSET', lives, '@', member)
            local heard = 1
            if string.sub(look, 1, 1) ~= 'p' then
                heard = redis.pcall('PUBLISH', ARGV[4] .. client, next .. key)
            end
            if type(heard) == 'table' then
                -- Not allowed to wake anybody: the lock is free, and whoever looks first in the queue gets it.
                redis.pcall('HDEL', lives, '@')
                redis.pcall('ZADD', queue, first[2], member)
                -- If it was the only entry, the queue was gone and is new: without an end so far.
                redis.pcall('EXPIRE', queue, 60)
                break
            elseif heard > 0 then
                return true
            end
            -- Nobody listens on that channel: the client is dead.
            redis.call('HDEL', lives, '@', client)
        end
    end
end

-- A queue that this user may not use, or something else in its place, keeps nobody from releasing.
local able, handed_over = pcall(hand_over)
if held and held ~= owner then return { held, -1 } end
if not able or not handed_over then redis.call('DEL', key) end
if not held then return 0 end
return able and handed_over and 2 or 1
