-- redlock_join: admits a server process, with no counter below the given ones.
-- KEYS 1 memory
-- ARGV 1 the server's run id  2 since when it was seen, in micros: it changes with another loss of memory  3 floor
--      4 whether it is admitted by time (1 or 0)  5... the counters, one for each bucket
-- Returns 1, or 0 if it has lost its memory since.
local memory, run = KEYS[1], ARGV[1]
if redis.call('HGET', memory, 'run') == run then
  return 1
end
if redis.call('HGET', memory, 'since') ~= run .. ':' .. ARGV[2] then
  return 0
end
for i = 5, #ARGV do
  local before = tonumber(redis.call('HGET', memory, i - 5) or '0')
  if before < tonumber(ARGV[i]) then
    redis.call('HSET', memory, i - 5, ARGV[i])
  end
end
if ARGV[4] == '1' then
  redis.call('HSET', memory, 'young', 1)
else
  redis.call('HDEL', memory, 'young')
end
redis.call('HSET', memory, 'floor', ARGV[3])
redis.call('HSET', memory, 'run', run)
redis.call('HDEL', memory, 'since', 'watch')
return 1
