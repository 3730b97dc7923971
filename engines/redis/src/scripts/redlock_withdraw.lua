-- redlock_withdraw: release, leave the queue, or undo an attempt.
-- KEYS 1 lock  2 queue
-- ARGV 1 'fl1:' claim ':', and the attempt and ':' to withdraw only that one  2 'release', 'undo' or 'lost', or the lock-delay
--      in ms to abandon
-- Returns 1 released, 2 left the queue, 3 it had expired, 4 not the owner.
local name, queue = KEYS[1], KEYS[2]
-- GET, not GETRANGE: Lua takes longer to format the numbers of the range.
local value = redis.call('GET', name)
local mine = value and string.sub(value, 1, #ARGV[1]) == ARGV[1]
if mine and ARGV[2] == 'undo' and not string.match(value, '^fl1:%x+:%d+:1:%d+:%d+:0:') then
  -- A renewal has made it a grant since.
  return 4
end
if mine and ARGV[2] == 'release' then
  redis.call('DEL', name)
  -- The common case ends here.
  if redis.call('EXISTS', queue) == 0 then
    return 1
  end
end
local queue_data = queue .. ':who'

-- Tells the first waiter whose process listens.
local function ring()
  for _ = 1, 64 do
    local claim = redis.call('ZPOPMIN', queue)[1]
    if not claim then
      return
    end
    local channel = string.match(redis.call('HGET', queue_data, claim) or '', '^%d+:%d+:%d+:%w+:%d+:([^:]*):')
    redis.call('HDEL', queue_data, claim)
    if channel then
      local told = redis.pcall('PUBLISH', 'fencelock:' .. channel, 'w' .. claim)
      if type(told) == 'number' and told > 0 then
        return
      end
    end
  end
end

if mine then
  local delay = tonumber(ARGV[2])
  if delay and delay > 0 then
    if redis.call('PTTL', name) > delay then
      redis.call('PEXPIRE', name, delay)
    end
    return 1
  end
  if ARGV[2] ~= 'release' then
    redis.call('DEL', name)
  end
  if ARGV[2] ~= 'undo' then
    ring()
  end
  if ARGV[2] == 'lost' then
    local channel = string.match(value, '^fl1:%x+:%d+:%d+:%d+:%d+:%d+:%d:%d+:([^:]*):')
    redis.pcall('PUBLISH', 'fencelock:' .. channel, 'l' .. string.sub(value, 5, 36))
  end
  return 1
end
local claim = string.sub(ARGV[1], 5, 36)
if ARGV[2] ~= 'undo' and ARGV[2] ~= 'lost' and redis.call('ZREM', queue, claim) == 1 then
  redis.call('HDEL', queue_data, claim)
  return 2
end
return value and 4 or 3
