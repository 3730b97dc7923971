-- redlock_raise: each counter of one node is at least `floor` from then on.
-- KEYS 1 memory
-- ARGV 1 the server's run id  2 how many buckets there are  3 floor
-- Returns the highest counter, as text; '' if the node does not vote.
local memory = KEYS[1]
if redis.call('HGET', memory, 'run') ~= ARGV[1] then
  return ''
end
local floor = tonumber(ARGV[3])
local highest = floor
for first = 1, tonumber(ARGV[2]), 512 do
  local fields, raised = {}, {}
  for bucket = first, first + 511 do
    fields[#fields + 1] = bucket - 1
  end
  for at, counter in ipairs(redis.call('HMGET', memory, unpack(fields))) do
    local last = tonumber(counter or '0') or 0
    highest = math.max(highest, last)
    if last < floor then
      raised[#raised + 1] = fields[at]
      raised[#raised + 1] = string.format('%.0f', floor)
    end
  end
  if #raised > 0 then
    redis.call('HSET', memory, unpack(raised))
  end
end
return string.format('%.0f', highest)
