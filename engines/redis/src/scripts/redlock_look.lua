-- redlock_look: the lock as one node has it. Changes nothing.
-- KEYS 1 lock  2 line
-- Answers {now, value, pttl, waiters}: waiters as stored, 1000 at most.
local parts = redis.call('TIME')
local now = parts[1] * 1000 + math.floor(parts[2] / 1000)
local waiters = {}
local claims = redis.call('ZRANGE', KEYS[2], 0, 999)
if #claims > 0 then
  waiters = redis.call('HMGET', KEYS[2] .. ':who', unpack(claims))
end
return {now, redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]), waiters}
