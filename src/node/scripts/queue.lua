-- Stand in the queue for a key, look again, or take over the entry and vote of an earlier owner.
-- KEYS: key, queue, lives. ARGV: owner, client, '1' for a client that polls, earlier owner or '', earlier score or '',
-- length of a hand-over in ms, most in the queue, what stands before a client in its channel.
-- Answers 1 when the owner has this node's vote, 2 when the queue is full, or { how many before, score, 1 if it was not in
-- queue, value found, its remaining ms }; the last two are missing where the key is free.
local key, queue, lives = KEYS[1], KEYS[2], KEYS[3]
local owner, client, earlier, hand_over = ARGV[1], ARGV[2], ARGV[4], ARGV[6]
local member = owner .. client
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local held, failed = found(key)
if failed then return failed end

-- A free key that was handed over last: nobody claimed it in time. That client hangs, and with it all its waiters.
if held == false then
    local last = redis.call('HGET', lives, '@')
    if last then redis.call('HDEL', lives, '@', string.sub(last, 33)) end
end
-- Asked for before anything is written, too: whoever may not do it leaves nothing that never ends.
local ends = redis.call('EXPIRE', lives, 60)
redis.call('HSET', lives, client, (ARGV[3] == '1' and 'p' or 'w') .. string.format('%.0f', now))
if ends == 0 then redis.call('EXPIRE', lives, 60) end

-- The earlier owner may have claimed this node while it waited in the queue here.
local function vote()
    redis.call('ZREM', queue, member, earlier .. client)
    redis.call('HSET', lives, '@', member)
    return 1
end
if earlier ~= '' and held == earlier then
    redis.call('SET', key, owner, 'PX', hand_over)
    return vote()
end
if held == owner then
    -- A life that may not be lengthened is no reason to fail: a vote is relied upon by nobody before it is claimed.
    if lengthen(key, hand_over) ~= 0 then return vote() end
    held = false
end

local entered = 0
local score = redis.call('ZSCORE', queue, member)
if not score and earlier ~= '' then
    score = redis.call('ZSCORE', queue, earlier .. client)
    if score then
        redis.call('ZREM', queue, earlier .. client)
        redis.call('ZADD', queue, score, member)
    end
end
if not score then
    if redis.call('ZCARD', queue) >= tonumber(ARGV[7]) then return 2 end
    entered = 1
    score = ARGV[5]
    if score == '' then
        score = time[1] * 1000000 + time[2]
        local last = tonumber(redis.call('ZREVRANGE', queue, 0, 0, 'WITHSCORES')[2])
        if last and last >= score then score = last + 1 end
    end
    redis.call('ZADD', queue, score, member)
end
if redis.call('EXPIRE', queue, 60) == 0 then
    -- Its life ended just now, and this entry's with it.
    entered = 1
    redis.call('ZADD', queue, score, member)
    redis.call('EXPIRE', queue, 60)
end

-- The lock is free here: it goes to the first who lives, be it this owner or another. Who does not know any more that it
-- stands here passes it on; waiting for its look, everybody would wait for ever.
while held == false do
    local first = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')
    local other = first[1]
    if other == member then
        redis.call('SET', key, owner, 'PX', hand_over)
        return vote()
    end
    redis.call('ZREM', queue, other)
    local other_client = string.sub(other, 33)
    local look = redis.call('HGET', lives, other_client)
    if look and now - tonumber(string.sub(look, 2)) <= 3000 then
        local next = string.sub(other, 1, 32)
        redis.call('SET', key, next, 'PX', hand_over)
        redis.call('HSET', lives, '@', other)
        local heard = 1
        if string.sub(look, 1, 1) ~= 'p' then heard = redis.pcall('PUBLISH', ARGV[8] .. other_client, next .. key) end
        if type(heard) == 'table' then
            -- Not allowed to wake anybody: the lock stays free for the first in the queue to look.
            redis.call('DEL', key)
            redis.call('HDEL', lives, '@')
            redis.call('ZADD', queue, first[2], other)
            break
        end
        if heard > 0 then
            held = next
        else
            -- No connection listens on that channel: the client is dead. What was set for it goes to the next.
            redis.call('HDEL', lives, other_client)
        end
    end
end
local before = redis.call('ZRANK', queue, member)
score = string.format('%.0f', tonumber(score))
if held == false then return { before, score, entered } end
local left = redis.pcall('PTTL', key)
if type(left) == 'table' then left = -1 end
return { before, score, entered, held, left }
