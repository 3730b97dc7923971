-- look: the lock as it is. Changes nothing.
-- KEYS 1 lock  2 line  3 line:who  4 line:readers  5 line:readers:who
-- Answers {now, value, pttl, readers, waiters}: readers = claim, expiry, stored; waiters = stored, 1000 at most.
local name, line, waiting, readers_of, reading = unpack(KEYS)
local parts = redis.call('TIME')
local now = parts[1] * 1000 + math.floor(parts[2] / 1000)
local value = redis.call('GET', name)
local readers = {}
if value and string.sub(value, 1, 6) == 'fl1:*:' then
  local found = redis.call('ZRANGE', readers_of, 0, -1, 'WITHSCORES')
  for i = 1, #found, 2 do
    readers[#readers + 1] = found[i]
    readers[#readers + 1] = found[i + 1]
    readers[#readers + 1] = redis.call('HGET', reading, found[i]) or ''
  end
end
local waiters = {}
local claims = redis.call('ZRANGE', line, 0, 999)
if #claims > 0 then
  waiters = redis.call('HMGET', waiting, unpack(claims))
end
return {now, value, redis.call('PTTL', name), readers, waiters}
