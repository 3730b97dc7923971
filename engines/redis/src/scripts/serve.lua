-- poke: serve the line if the lock is free.
-- KEYS 1 lock  2 line  3 line:who  4 line:readers  5 line:readers:who  6 counter
-- ARGV 1 floor  2 shut (1 or 0)
local floor, shut = tonumber(ARGV[1]), ARGV[2] == '1'
-- include lib.lua
advance(holder())
return 1
