-- withdraw: release, leave the queue, or undo a placement of unknown outcome.
-- KEYS 1 lock  2 queue  3 queue:who  4 queue:readers  5 queue:readers:who  6 counter
-- ARGV 1 'fl1:' and the claim  2 empty to release; to abandon, the lock-delay in ms  3 floor  4 no_grants (1 or 0)
--      5 (optional) a token: only the grant with this token, if it was handed over and the claim has not confirmed it
-- Returns 1 released, 2 left the queue, 3 it had expired, 4 not the owner.
local floor, no_grants = tonumber(ARGV[3]), ARGV[4] == '1'
local claim, delay = string.sub(ARGV[1], 5), tonumber(ARGV[2]) or 0
-- include lib.lua
local value = redis.call('GET', name)
local mine = value and string.sub(value, 1, 36) == ARGV[1]

if ARGV[5] then
  local kept = mine and string.sub(value, 5) or redis.call('HGET', reader_data, claim) or ''
  if string.match(kept, mine and '^%x+:(%d+):%d+:%d+:%d+:%d+:2:' or '^(%d+):%d+:%d+:2:') ~= ARGV[5] then
    return 4
  end
end

if mine and delay == 0 then
  if not serve(false) then
    redis.call('DEL', name)
  end
  return 1
end

local answer
if mine then
  answer = 1
  if redis.call('PTTL', name) > delay then
    redis.call('PEXPIRE', name, delay)
  end
else
  local kind = value and string.match(value, '^fl1:%*:(.*)$')
  local score = kind and redis.call('ZSCORE', readers, claim)
  if score then
    answer = tonumber(score) > now() and 1 or 3
    if delay == 0 or answer == 3 then
      redis.call('ZREM', readers, claim)
      redis.call('HDEL', reader_data, claim)
    elseif tonumber(score) > now() + delay then
      redis.call('ZADD', readers, text(now() + delay), claim)
    end
    set_expiry(kind)
  elseif redis.call('ZREM', queue, claim) == 1 then
    redis.call('HDEL', queue_data, claim)
    answer = 2
  else
    answer = value and 4 or 3
  end
end
serve(current())
return answer
