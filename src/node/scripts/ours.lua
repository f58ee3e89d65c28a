-- A part of release.lua, extend.lua and raise.lua, which stands before each of them.
-- What there is to answer where a key does not carry an owner: 0 where the key is absent, { value found, -1 }, or an error.
-- Nothing where it does.
local function refusal(key, owner)
    local held, failed = found(key)
    if failed then return failed end
    if held == false then return 0 end
    if held ~= owner then return { held, -1 } end
end
