-- Lift the fencing counter to at least a token, if the key carries this owner.
-- KEYS: key, counter. ARGV: owner, token, retention of the counter in ms.
-- Answers 1 when done, 0 where the key is absent, or { value found, -1 }; the value is cut to 64 bytes, and 0 for a key of
-- another type.
local held = redis.pcall('GET', KEYS[1])
if held == false then return 0 end
if type(held) == 'table' then
    if string.find(held.err, 'WRONGTYPE', 1, true) then return { 0, -1 } end
    return held
end
if held ~= ARGV[1] then return { string.sub(held, 1, 64), -1 } end
local stored = redis.call('GET', KEYS[2])
local number, token = 0, tonumber(ARGV[2])
if stored then number = tonumber(string.match(stored, '^(%d+) %x+$')) end
if not number then return redis.error_reply('ERR script: the fencing counter is none') end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local expires = string.format('%.0f', math.floor(math.max(now, number, token) / 1000) + ARGV[3])
if number < token then
    redis.call('SET', KEYS[2], ARGV[2] .. ' ' .. ARGV[1], 'PXAT', expires)
else
    redis.call('PEXPIREAT', KEYS[2], expires)
end
return 1
