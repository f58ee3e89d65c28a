-- A part of every script.
-- What is under a key: false where there is nothing, the value cut to 64 bytes, which no owner is longer than, or 0 for a key
-- of another type. Where it may not be read, nothing and the error.
local function found(key)
    local held = redis.pcall('GET', key)
    if type(held) == 'table' then
        if not string.find(held.err, 'WRONGTYPE') then return nil, held end
        return 0
    end
    return held and string.sub(held, 1, 64)
end
