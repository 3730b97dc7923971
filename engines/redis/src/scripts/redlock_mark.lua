-- redlock_mark: one node's vote for a token of an attempt that it has voted for. Only a counter that is not above the token
-- gives it: so each node votes for each token once.
-- KEYS 1 lock  2 memory
-- ARGV 1 'fl1:' claim ':' attempt ':'  2 token  3 bucket  4 px
-- Answers 1, or 0 if it does not vote for it.
local known = redis.call('HMGET', KEYS[2], ARGV[3], 'run')
local counter = known[2] and known[1]
local value = redis.call('GET', KEYS[1])
if not counter or not value or string.sub(value, 1, #ARGV[1]) ~= ARGV[1] or tonumber(counter) > tonumber(ARGV[2]) then
  return 0
end
local kept = string.match(value, '^1:%d+:(.*)$', #ARGV[1] + 1)
redis.call('SET', KEYS[1], ARGV[1] .. '1:' .. ARGV[2] .. ':' .. kept, 'PX', ARGV[4])
redis.call('HSET', KEYS[2], ARGV[3], ARGV[2])
return 1
