-- Who holds a key, for how long, and how many wait for it.
-- KEYS: key, line. Answers { how many wait, value found, its remaining ms }; the last two are missing where the key is free.
-- The value is 0 for a key of another type.
local waiting = redis.pcall('ZCARD', KEYS[2])
if type(waiting) == 'table' then waiting = 0 end
local held = redis.pcall('GET', KEYS[1])
if held == false then return { waiting } end
if type(held) == 'table' then
    if not string.find(held.err, 'WRONGTYPE', 1, true) then return held end
    held = 0
end
local left = redis.pcall('PTTL', KEYS[1])
if type(left) == 'table' then left = -1 end
return { waiting, held, left }
