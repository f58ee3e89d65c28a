-- A part of extend.lua and raise.lua, which stands before each of them.
-- Lift a fencing counter to at least a token, and keep it for its retention. `call` is redis.call or redis.pcall: whether
-- an error ends the script or is answered. Answers a table with `err` where the counter is none, or could not be lifted.
local function lift(call, counter, owner, token, retention)
    local stored = call('GET', counter)
    if type(stored) == 'table' then return stored end
    local number = 0
    if stored then number = tonumber(string.match(stored, '^(%d+) %x+$')) end
    if not number then return redis.error_reply('ERR script: the fencing counter is none') end
    local time = redis.call('TIME')
    local now = time[1] * 1000000 + time[2]
    local last = math.max(now, number, tonumber(token))
    local expires = string.format('%.0f', math.floor(last / 1000) + retention)
    if number < tonumber(token) then
        return call('SET', counter, token .. ' ' .. owner, 'PXAT', expires)
    end
    local done = call('PEXPIREAT', counter, expires)
    -- Its life ended just now.
    if done == 0 then return call('SET', counter, stored, 'PXAT', expires) end
    return done
end
