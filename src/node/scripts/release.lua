-- Delete the key if it carries this owner.
-- Answers 1 when done, and otherwise as ours.lua says. What nearly all runs need stands first, before any function is made.
if redis.pcall('GET', KEYS[1]) == ARGV[1] then
    redis.call('DEL', KEYS[1])
    return 1
end
