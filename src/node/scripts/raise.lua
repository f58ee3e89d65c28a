-- Lift the fencing counter to at least a token, if the key carries this owner.
-- KEYS: key, counter. ARGV: owner, token, retention of the counter in ms.
-- Answers 1 when done, and otherwise as ours.lua says.
local other = refusal(KEYS[1], ARGV[1])
if other then return other end
local lifted = lift(redis.call, KEYS[2], ARGV[1], ARGV[2], ARGV[3])
if type(lifted) == 'table' and lifted.err then return lifted end
return 1
