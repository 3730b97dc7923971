-- redlock_look: the state of the lock at one node. Changes nothing.
-- KEYS 1 lock  2 queue
-- Returns {now, value, pttl, waiters}: waiters as stored, at most 1000.
local parts = redis.call('TIME')
local now = parts[1] * 1000 + math.floor(parts[2] / 1000)
local waiters = {}
local claims = redis.call('ZRANGE', KEYS[2], 0, 999)
if #claims > 0 then
  waiters = redis.call('HMGET', KEYS[2] .. ':who', unpack(claims))
end
return {now, redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]), waiters}
