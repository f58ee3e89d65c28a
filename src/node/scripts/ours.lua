-- A part of release.lua, extend.lua and raise.lua, which stands before each of them.
-- What there is to answer where a key does not carry an owner: 0 where the key is absent, { value found, -1 }, or an error;
-- the value is cut to 64 bytes, and 0 for a key of another type. Nothing where it does.
local function refusal(key, owner)
    local held = redis.pcall('GET', key)
    if held == false then return 0 end
    if type(held) == 'table' then
        if string.find(held.err, 'WRONGTYPE', 1, true) then return { 0, -1 } end
        return held
    end
    if held ~= owner then return { string.sub(held, 1, 64), -1 } end
end
