-- A part of claim.lua, fenced_claim.lua, extend.lua and queue.lua.
-- Lengthen the life of a key to at least a TTL in ms, never shorten it; a key without an end gets one.
-- Answers 1 when the key lives for so long, 0 where it is absent, or the error that leaves its life as it was.
-- A server may let time go on while a script runs: so a key that was there a moment ago may be absent.
local function lengthen(key, ttl)
    local left = redis.pcall('PTTL', key)
    if type(left) == 'number' then
        if left >= tonumber(ttl) then return 1 end
        return redis.pcall('PEXPIRE', key, ttl)
    end
    -- This user may not read the life, and a shorter one may do harm. From Redis 7.0 on the server compares by itself.
    local done = redis.pcall('PEXPIRE', key, ttl, 'GT')
    if done == 0 then done = redis.pcall('PEXPIRE', key, ttl, 'NX') end
    if type(done) == 'table' then
        return redis.error_reply('ERR script: PTTL is forbidden, and PEXPIRE with a condition failed: ' .. done.err)
    end
    -- Neither was to be done: it lives for longer, or it is gone.
    if done == 0 and redis.pcall('GET', key) then done = 1 end
    return done
end
