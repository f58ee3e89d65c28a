-- Who holds a key, for how long, and how many wait for it.
-- KEYS: key, queue. Answers { how many wait, value found, its remaining ms }; the last two are missing where the key is free.
local waiting = redis.pcall('ZCARD', KEYS[2])
if type(waiting) == 'table' then waiting = 0 end
local held, failed = found(KEYS[1])
if failed then return failed end
if held == false then return { waiting } end
local left = redis.pcall('PTTL', KEYS[1])
if type(left) == 'table' then left = -1 end
return { waiting, held, left }
