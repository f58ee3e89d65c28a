-- The beginning of hand_over.lua, which is all that most releases need, before any function is made: the key carries this
-- owner, and nobody waits. Where the user may not use the queue's keys, the rest decides.
local mine, exists = redis.pcall('GET', KEYS[1]) == ARGV[1], redis.pcall('EXISTS', KEYS[2])
if mine and exists == 0 then
    if type(redis.pcall('DEL', KEYS[1], KEYS[3])) == 'number' then return 1 end
end
