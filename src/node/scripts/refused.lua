-- The end of release.lua: the key does not carry this owner.
return refusal(KEYS[1], ARGV[1])
