-- redlock_attach: the first call on each connection. Tells whether this server process votes, and notes when it was seen
-- first if it does not: for each machine that asks, by that machine's boot clock, which nobody sets.
-- KEYS 1 memory
-- ARGV 1 the server's run id  2 longest lease in ms  3 the machine  4 its boot clock in ms
-- Answers {member, micros, since, longest, floor, first}: member 1 if it was let in since it was started, 0 if it was
-- before, -1 if it has no memory at all; since: when anybody saw it first, in micros, which names this spell without
-- memory; longest: the longest lease that anyone uses; first: when this machine saw it first, by its boot clock.
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
-- '<machine>=<boot clock in ms>,' for each, up to some fifty: those who come later have to watch by themselves.
local first = string.match(watch, machine .. '=(%-?%d+),')
if not first or tonumber(first) > tonumber(now) then
  first = now
  watch = string.gsub(watch, machine .. '=%-?%d+,', '')
  if #watch < 3000 then
    redis.call('HSET', memory, 'watch', watch .. machine .. '=' .. now .. ',')
  end
end
return {member and 0 or -1, micros, tonumber(since), longest, 0, tonumber(first)}
