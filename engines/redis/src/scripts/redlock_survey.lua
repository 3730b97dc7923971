-- redlock_survey: what one node tells one that lost its memory.
-- KEYS 1 memory
-- ARGV 1 the server's run id  2 how many buckets there are
-- Returns {member (1 or 0), micros, floor, longest, counters, young}: a counter for each bucket, '' for none; young: 1 if it
-- was admitted by time before a quorum was complete.
local memory = KEYS[1]
local parts = redis.call('TIME')
local member = redis.call('HGET', memory, 'run') == ARGV[1] and 1 or 0
local counters = {}
for first = 1, tonumber(ARGV[2]), 512 do
  local fields = {}
  for bucket = first, first + 511 do
    fields[#fields + 1] = bucket - 1
  end
  for _, counter in ipairs(redis.call('HMGET', memory, unpack(fields))) do
    counters[#counters + 1] = counter or ''
  end
end
return {member, parts[1] * 1000000 + parts[2], tonumber(redis.call('HGET', memory, 'floor') or '0'),
  tonumber(redis.call('HGET', memory, 'longest') or '0'), counters, redis.call('HGET', memory, 'young') and 1 or 0}
