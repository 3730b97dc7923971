-- redlock_attach: the first call on each connection. Tells whether this server process votes, and notes when it was seen
-- first if it does not.
-- KEYS 1 memory
-- ARGV 1 the server's run id  2 longest lease in ms
-- Answers {member, micros, since, longest, floor}: member 1 if it was let in since it was started, 0 if it was before,
-- -1 if it has no memory at all; since: when it was seen first, in micros; longest: the longest lease that anyone uses.
local memory, run = KEYS[1], ARGV[1]
local parts = redis.call('TIME')
local micros = parts[1] * 1000000 + parts[2]
local longest = math.max(tonumber(redis.call('HGET', memory, 'longest') or '0'), tonumber(ARGV[2]))
redis.call('HSET', memory, 'longest', string.format('%.0f', longest))
local member = redis.call('HGET', memory, 'run')
if member == run then
  return {1, micros, 0, longest, tonumber(redis.call('HGET', memory, 'floor'))}
end
local seen, since = string.match(redis.call('HGET', memory, 'since') or '', '^(%x+):(%d+)$')
if seen ~= run or tonumber(since) > micros then
  -- Or its clock was set back: it waits from now.
  since = string.format('%.0f', micros)
  redis.call('HSET', memory, 'since', run .. ':' .. since)
end
return {member and 0 or -1, micros, tonumber(since), longest, 0}
