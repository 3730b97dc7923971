-- take: the common case of `place` for a claim whose token is recorded: it is exclusive, nobody holds, and there is no queue.
-- KEYS 1 lock  2 queue  3 counter
-- ARGV 1 'fl1:' and the claim  2 px of the lease  3 what follows the token  4 floor  5 server time in ms after which to do nothing
-- Returns the token, or 0 in another case. Then nothing was changed but the counter, and `place` decides.
if redis.call('EXISTS', KEYS[1], KEYS[2]) > 0 then
  return 0
end
local time = redis.call('TIME')
if time[1] * 1000 + time[2] / 1000 > tonumber(ARGV[5]) then
  return 0
end
local token = redis.call('INCRBY', KEYS[3], '1')
if token <= tonumber(ARGV[4]) then
  return 0
end
local text = string.format('%.0f', token)
redis.call('SET', KEYS[1], ARGV[1] .. ':' .. text .. ':1:' .. text .. ARGV[3], 'PX', ARGV[2])
return token
