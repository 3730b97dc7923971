-- poke: serve the line if the lock is free.
-- KEYS 1 lock  2 line  3 counter
-- ARGV 1 floor
local name, line, counter, floor = KEYS[1], KEYS[2], KEYS[3], tonumber(ARGV[1])
-- include lib.lua
advance(holder())
return 1
