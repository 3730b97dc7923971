-- redlock_ask: ask the claim that holds to release.
-- KEYS 1 lock
-- ARGV 1 'fl1:' claim ':'
-- Returns 1 done, 0 it does not hold.
local value = redis.call('GET', KEYS[1])
if not value or string.sub(value, 1, #ARGV[1]) ~= ARGV[1] then
  return 0
end
local head, channel, tail = string.match(value, '^(fl1:%x+:%d+:%d+:%d+:%d+:%d+:)%d:%d+:([^:]*):(.*)$')
local delay = string.match(value, '^fl1:%x+:%d+:%d+:%d+:%d+:%d+:%d:(%d+):')
redis.call('SET', KEYS[1], head .. '1:' .. delay .. ':' .. channel .. ':' .. tail, 'KEEPTTL')
redis.pcall('PUBLISH', 'fencelock:' .. channel, 'a' .. string.sub(value, 5, 36))
return 1
