-- For each key that still carries its owner, lengthen its life to its TTL, never shorten it.
-- KEYS: the keys. ARGV: for each key its owner and its TTL in ms.
-- Answers for a key 1 when done, 0 where it is absent, or { value found, -1 }; the value is cut to 64 bytes, and 0 for a
-- key of another type. For several keys the list of these, with an error's text in its key's place.
local function extend(key, owner, ttl)
    local held = redis.pcall('GET', key)
    if held == false then return 0 end
    if type(held) == 'table' then
        if string.find(held.err, 'WRONGTYPE', 1, true) then return { 0, -1 } end
        return held
    end
    if held ~= owner then return { string.sub(held, 1, 64), -1 } end
    local left = redis.pcall('PTTL', key)
    if type(left) == 'table' or left < tonumber(ttl) then
        local done = redis.pcall('PEXPIRE', key, ttl)
        if type(done) == 'table' then return done end
    end
    return 1
end
if #KEYS == 1 then return extend(KEYS[1], ARGV[1], ARGV[2]) end
local answers = {}
for i, key in ipairs(KEYS) do
    local answer = extend(key, ARGV[2 * i - 1], ARGV[2 * i])
    if type(answer) == 'table' and answer.err then answer = answer.err end
    answers[i] = answer
end
return answers
