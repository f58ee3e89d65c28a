-- If the key still carries this owner, lengthen its life to the TTL, never shorten it.
-- Answers 1 when done, 0 where the key is absent, or { value found, -1 }; the value is cut to 64 bytes, and 0 for a
-- key of another type.
local held = redis.pcall('GET', KEYS[1])
if held == false then return 0 end
if type(held) == 'table' then
    if string.find(held.err, 'WRONGTYPE', 1, true) then return { 0, -1 } end
    return held
end
if held ~= ARGV[1] then return { string.sub(held, 1, 64), -1 } end
local left = redis.pcall('PTTL', KEYS[1])
if type(left) == 'table' or left < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 1
