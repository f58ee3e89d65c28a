-- Claim a lock together with its fencing counter: set the key if it is absent; if it already carries this owner, lengthen
-- its life to the full TTL. The counter becomes max(stored + 1, min(candidate, this node's time + 10 s)), unless this owner
-- advanced it last. Where a token is carried along instead, the counter is lifted to at least that.
-- KEYS: key, counter. ARGV: owner, TTL in ms, retention of the counter in ms, candidate in µs, or '' and the token.
-- Answers the counter as text when done, 3 where it is at its end or none, or { value found, remaining ms } as claim.lua does.
local owner = ARGV[1]
local stored = redis.call('GET', KEYS[2])
local number, last = 0, nil
if stored then
    number, last = string.match(stored, '^(%d+) (%x+)$')
    if not number then return 3 end
    number = tonumber(number)
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local next = number
if ARGV[5] then
    next = math.max(number, tonumber(ARGV[5]))
elseif last ~= owner then
    next = math.max(number + 1, math.min(tonumber(ARGV[4]), now + 10000000))
end
-- Close to 2^53, where numbers stop being exact.
if next >= 9e15 then return 3 end

if not redis.call('SET', KEYS[1], owner, 'NX', 'PX', ARGV[2]) then
    local held = redis.pcall('GET', KEYS[1])
    -- An ACL may forbid PTTL, which is no reason to fail: the remaining life is only a hint.
    local left = redis.pcall('PTTL', KEYS[1])
    if type(left) == 'table' then left = -1 end
    if type(held) == 'table' then
        if string.find(held.err, 'WRONGTYPE', 1, true) then return { 0, left } end
        return held
    end
    if held ~= owner then return { string.sub(held, 1, 64), left } end
    if left < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
end

local text = string.format('%.0f', next)
local expires = string.format('%.0f', math.floor(math.max(now, next) / 1000) + ARGV[3])
if next ~= number then
    redis.call('SET', KEYS[2], text .. ' ' .. owner, 'PXAT', expires)
elseif ARGV[5] then
    redis.call('PEXPIREAT', KEYS[2], expires)
end
return text
