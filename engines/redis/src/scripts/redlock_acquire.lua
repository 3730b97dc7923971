-- redlock_acquire: one node's vote for a claim.
-- KEYS 1 lock  2 queue  3 memory
-- ARGV 1 claim  2 attempt  3 px of the lease  4 hint  5 bucket  6 wait (1 or 0)  7 server time in ms after which to do nothing
--      8 rest
-- Returns {word, counter, micros, pttl}: 'ok', 'busy', 'late', or 'blank' if the node has lost its memory.
--
-- The lock's value is 'fl1:<claim>:<attempt>:1:<token>:<px>:<since>:<asked>:<rest>'. A later attempt
-- of the same claim replaces an earlier one, unless that was renewed: then it is a grant. The memory is a hash: a counter for
-- each bucket of names, and what `redlock_attach` keeps.
local name, queue, memory = KEYS[1], KEYS[2], KEYS[3]
local claim, attempt, px, bucket = ARGV[1], ARGV[2], ARGV[3], ARGV[5]
local parts = redis.call('TIME')
local micros = parts[1] * 1000000 + parts[2]
local function text(number)
  return string.format('%.0f', number)
end
if micros > tonumber(ARGV[7]) * 1000 then
  return {'late', 0, micros, 0}
end
local known = redis.call('HMGET', memory, bucket, 'run')
local counter = tonumber(known[1] or '0')
if not known[2] then
  return {'blank', 0, micros, 0}
end
local value = redis.call('GET', name)
if value then
  local earlier, since = string.match(value, '^fl1:' .. claim .. ':(%d+):1:%d+:%d+:(%d+):')
  if not earlier or tonumber(earlier) > tonumber(attempt) or since ~= '0' then
    if ARGV[6] == '1' then
      redis.call('ZADD', queue, 'NX', text(micros), claim)
      redis.call('HSET', queue .. ':who', claim, '0:' .. text(micros / 1000) .. ':1:x:' .. ARGV[8])
      redis.call('PEXPIRE', queue, 10000)
      redis.call('PEXPIRE', queue .. ':who', 10000)
    end
    return {'busy', counter, micros, redis.call('PTTL', name)}
  end
end
counter = math.max(counter + 1, tonumber(ARGV[4]))
local token = text(counter)
redis.call('SET', name, 'fl1:' .. claim .. ':' .. attempt .. ':1:' .. token .. ':' .. px .. ':0:0:' .. ARGV[8], 'PX', px)
redis.call('HSET', memory, bucket, token)
if redis.call('ZREM', queue, claim) == 1 then
  redis.call('HDEL', queue .. ':who', claim)
end
return {'ok', counter, micros, 0}
