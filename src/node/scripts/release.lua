-- Delete the key if it carries this owner.
-- Answers 1 when done, and otherwise as ours.lua says.
local other = refusal(KEYS[1], ARGV[1])
if other then return other end
redis.call('DEL', KEYS[1])
return 1
