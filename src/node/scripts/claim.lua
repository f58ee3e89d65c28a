-- Set the key if it is absent; if it already carries this owner, lengthen its life to the full TTL.
-- Answers 1 when done, { value found, remaining ms }, or an error.
local held, failed = found(KEYS[1])
if failed then return failed end
if held == ARGV[1] then
    local done = lengthen(KEYS[1], ARGV[2])
    if done ~= 0 then return done end
    held = false
end
if held == false then
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
    return 1
end
-- An ACL may forbid PTTL, which is no reason to fail: the remaining life is only a hint.
local left = redis.pcall('PTTL', KEYS[1])
if type(left) == 'table' then left = -1 end
return { held, left }
