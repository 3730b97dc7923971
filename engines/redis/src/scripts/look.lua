-- look: the state of the lock. Changes nothing.
-- KEYS 1 lock  2 queue  3 queue:who  4 queue:readers  5 queue:readers:who
-- Returns {now, value, pttl, readers, waiters}: readers = claim, expiry, stored; waiters = stored, at most 1000.
local name, queue, queue_data, readers_of, reader_data = unpack(KEYS)
local parts = redis.call('TIME')
local now = parts[1] * 1000 + math.floor(parts[2] / 1000)
local value = redis.call('GET', name)
local readers = {}
if value and string.sub(value, 1, 6) == 'fl1:*:' then
  local found = redis.call('ZRANGE', readers_of, 0, -1, 'WITHSCORES')
  for i = 1, #found, 2 do
    readers[#readers + 1] = found[i]
    readers[#readers + 1] = found[i + 1]
    readers[#readers + 1] = redis.call('HGET', reader_data, found[i]) or ''
  end
end
local waiters = {}
local claims = redis.call('ZRANGE', queue, 0, 999)
if #claims > 0 then
  waiters = redis.call('HMGET', queue_data, unpack(claims))
end
return {now, value, redis.call('PTTL', name), readers, waiters}
