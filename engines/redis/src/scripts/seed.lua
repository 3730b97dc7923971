-- seed: the first call on each connection. Lifts the token counter to the server's time.
-- KEYS 1 counter
-- Returns {floor, now}: the counter, in microseconds, which every later token exceeds; the server's time in milliseconds.
-- Always writes, so that a read-only replica refuses.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local last = tonumber(redis.call('GET', KEYS[1]) or '0') or 0
if last < now then
  last = now
end
redis.call('SET', KEYS[1], string.format('%.0f', last))
return {last, math.floor(now / 1000)}
