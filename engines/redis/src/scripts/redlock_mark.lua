-- redlock_mark: one node's vote for a token, for an attempt that it has voted for. The node gives it only if its counter is
-- below the token, or came to the token with this attempt's own vote: so each node votes for each token once.
-- KEYS 1 lock  2 memory
-- ARGV 1 'fl1:' claim ':' attempt ':'  2 token  3 bucket  4 px  5 whether this node's vote for the attempt was the token
-- Returns 1, or 0 if it does not vote for the token.
local known = redis.call('HMGET', KEYS[2], ARGV[3], 'run')
local counter = known[2] and known[1]
local value = redis.call('GET', KEYS[1])
if not counter or not value or string.sub(value, 1, #ARGV[1]) ~= ARGV[1] or tonumber(counter) > tonumber(ARGV[2]) then
  return 0
end
local stored, kept = string.match(value, '^1:(%d+):(.*)$', #ARGV[1] + 1)
if tonumber(counter) == tonumber(ARGV[2]) and stored ~= ARGV[2] and ARGV[5] ~= '1' then
  -- Another attempt drew it: one without a script raises the counter even when it does not get the lock.
  return 0
end
redis.call('SET', KEYS[1], ARGV[1] .. '1:' .. ARGV[2] .. ':' .. kept, 'PX', ARGV[4])
redis.call('HSET', KEYS[2], ARGV[3], ARGV[2])
return 1
