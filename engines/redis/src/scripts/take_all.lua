-- take_all: `take` for many claims.
-- KEYS 1 counter, then for each: lock  queue
-- ARGV 1 floor  2 server time in ms after which to do nothing, then for each: 'fl1:' and the claim  px of the lease  what
-- follows the token
-- Returns for each the token, or 0 in another case. Without claims it does nothing: so its text gets to the server.
local count = (#KEYS - 1) / 2
if count <= 0 then
  return {}
end
local time = redis.call('TIME')
local late = time[1] * 1000 + time[2] / 1000 > tonumber(ARGV[2])
local before = late and 0 or redis.call('INCRBY', KEYS[1], count) - count
local refused = late or before < tonumber(ARGV[1])
local answers = {}
for i = 1, count do
  local lock = KEYS[2 * i]
  local token = 0
  if not refused and redis.call('EXISTS', lock, KEYS[2 * i + 1]) == 0 then
    token = before + i
    local text = string.format('%.0f', token)
    redis.call('SET', lock, ARGV[3 * i] .. ':' .. text .. ':1:' .. text .. ARGV[3 * i + 2], 'PX', ARGV[3 * i + 1])
  end
  answers[i] = token
end
return answers
