-- Claim a lock together with its fencing counter: set the key if it is absent; if it already carries this owner, lengthen
-- its life to the full TTL. The counter becomes max(stored + 1, candidate), unless this owner advanced it last. Where a token
-- is carried along instead, the counter is lifted to at least that. No clock of a node holds a candidate back: the client
-- does that, which knows the clocks of all nodes.
-- KEYS: key, counter. ARGV: owner, TTL in ms, retention of the counter in ms, candidate in µs, or '' and the token.
-- Answers the counter when done, 0 where it is at its end or none, or { value found, remaining ms } as claim.lua does.
-- Each acquire runs it on each node, so it is written to be quick: no pattern, and no text made where there is one.
local call, owner, text = redis.call, ARGV[1], ARGV[4]
local stored = redis.pcall('GET', KEYS[2])
if type(stored) == 'table' then
    -- A key of another type is no counter; one that may not be read is an error.
    if string.find(stored.err, 'WRONGTYPE') then return 0 end
    return stored
end
local time = call('TIME')
local now, number, last = time[1] * 1000000 + time[2], 0, nil
if stored then
    -- The number, a blank, and the 32 digits of the owner that advanced it.
    number, last = tonumber(string.sub(stored, 1, -34)), string.sub(stored, -32)
    if not number then return 0 end
end
local next = number
if ARGV[5] then
    text = ARGV[5]
    next = math.max(number, tonumber(text))
elseif last ~= owner then
    next = tonumber(text)
    if next <= number then next, text = number + 1, nil end
end
-- Close to 2^53, where numbers stop being exact.
if next >= 9e15 then return 0 end

if not call('SET', KEYS[1], owner, 'NX', 'PX', ARGV[2]) then
    local held, failed = found(KEYS[1])
    if failed then return failed end
    local done = 0
    if held == owner then done = lengthen(KEYS[1], ARGV[2]) end
    if type(done) == 'table' then return done end
    if held and held ~= owner then
        -- An ACL may forbid PTTL, which is no reason to fail: the remaining life is only a hint.
        local left = redis.pcall('PTTL', KEYS[1])
        if type(left) == 'table' then left = -1 end
        return { held, left }
    end
    if done == 0 then call('SET', KEYS[1], owner, 'PX', ARGV[2]) end
end

-- Kept beyond both this node's time and the time that it denotes.
local life = ARGV[3]
if next > now then life = string.format('%.0f', life + math.floor((next - now) / 1000)) end
if next ~= number then
    call('SET', KEYS[2], (text or string.format('%.0f', next)) .. ' ' .. owner, 'PX', life)
elseif ARGV[5] and call('PEXPIRE', KEYS[2], life) == 0 then
    -- Its life ended just now.
    call('SET', KEYS[2], stored, 'PX', life)
end
return next
