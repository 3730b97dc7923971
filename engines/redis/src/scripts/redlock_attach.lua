-- redlock_attach: the first call on each connection. Tells whether this server process votes. If not, notes when each
-- machine saw it first, by that machine's boot clock, which cannot be set.
-- KEYS 1 memory
-- ARGV 1 the server's run id  2 longest lease in ms  3 the machine  4 its boot clock in ms
-- Returns {member, micros, since, longest, floor, first}: member 1 if it was admitted since its start, 0 if it was admitted
-- before, -1 if it has no memory; since: when a client saw it first, in micros, which names this absence; longest: the
-- longest lease in use; first: when this machine saw it first, by its boot clock.
local memory, run, machine, now = KEYS[1], ARGV[1], ARGV[3], ARGV[4]
local parts = redis.call('TIME')
local micros = parts[1] * 1000000 + parts[2]
local longest = math.max(tonumber(redis.call('HGET', memory, 'longest') or '0'), tonumber(ARGV[2]))
redis.call('HSET', memory, 'longest', string.format('%.0f', longest))
local member = redis.call('HGET', memory, 'run')
if member == run then
  return {1, micros, 0, longest, tonumber(redis.call('HGET', memory, 'floor')), 0}
end
local seen, since = string.match(redis.call('HGET', memory, 'since') or '', '^(%x+):(%d+)$')
local watch = redis.call('HGET', memory, 'watch') or ''
if seen ~= run then
  since = string.format('%.0f', micros)
  redis.call('HSET', memory, 'since', run .. ':' .. since)
  watch = ''
end
-- '<machine>=<boot clock in ms>,' for each, up to about fifty: clients on further machines go by what they see.
local first = string.match(watch, machine .. '=(%-?%d+),')
if not first or tonumber(first) > tonumber(now) then
  first = now
  watch = string.gsub(watch, machine .. '=%-?%d+,', '')
  if #watch < 3000 then
    redis.call('HSET', memory, 'watch', watch .. machine .. '=' .. now .. ',')
  end
end
return {member and 0 or -1, micros, tonumber(since), longest, 0, tonumber(first)}
