-- raise: a counter of tokens is at least `floor` from then on.
-- KEYS 1 counter
-- ARGV 1 floor  2 whether tokens are at least the server's time (1 or 0)
-- Returns the highest token that can have been granted, as text: the counter or, if a fail-over may have lost it, the time.
local last = tonumber(redis.call('GET', KEYS[1]) or '0') or 0
local floor = tonumber(ARGV[1])
if last < floor then
  last = floor
  redis.call('SET', KEYS[1], string.format('%.0f', last))
end
if ARGV[2] == '1' then
  local time = redis.call('TIME')
  last = math.max(last, time[1] * 1000000 + time[2])
end
return string.format('%.0f', last)
