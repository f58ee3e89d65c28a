-- For each key that still carries its owner, lengthen its life to its TTL, never shorten it; where the lease has a fencing
-- token, first lift the key's counter to at least that.
-- KEYS: the keys, then the counters of those with a token. ARGV: for each key its owner and its TTL in ms, then for each
-- counter the place of its key, the token, and its retention in ms.
-- Answers for a key 1 when done, and otherwise as ours.lua says. For several keys the list of these, with an error's text in
-- its key's place.
local n = 3 * #KEYS - #ARGV
local fences = {}
for i = n + 1, #KEYS do
    local at = 2 * n + 3 * (i - n)
    fences[tonumber(ARGV[at - 2])] = { KEYS[i], ARGV[at - 1], ARGV[at] }
end
local function extend(i)
    local key, owner, ttl, fence = KEYS[i], ARGV[2 * i - 1], ARGV[2 * i], fences[i]
    local other = refusal(key, owner)
    if other then return other end
    if fence then
        local lifted = lift(redis.pcall, fence[1], owner, fence[2], fence[3])
        if type(lifted) == 'table' and lifted.err then return lifted end
    end
    return lengthen(key, ttl)
end
if n == 1 then return extend(1) end
local answers = {}
for i = 1, n do
    local answer = extend(i)
    if type(answer) == 'table' and answer.err then answer = answer.err end
    answers[i] = answer
end
return answers
