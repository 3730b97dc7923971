-- serve: serve the queue if the lock is free.
-- KEYS 1 lock  2 queue  3 queue:who  4 queue:readers  5 queue:readers:who  6 counter
-- ARGV 1 floor  2 no_grants (1 or 0)
local floor, no_grants = tonumber(ARGV[1]), ARGV[2] == '1'
-- include lib.lua
serve(current())
return 1
