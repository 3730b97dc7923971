-- record: changes the store's record if its version still is the one that the writer read.
-- KEYS 1 records: a hash, by scope
-- ARGV 1 scope  2 the version that it must have  3 the new text
-- Returns 'VERSION:TEXT' as it is now.
local found = redis.call('HGET', KEYS[1], ARGV[1]) or '0:'
local version, text = string.match(found, '^(%d+):(.*)$')
if version == ARGV[2] then
  found = string.format('%.0f', tonumber(version) + 1) .. ':' .. ARGV[3]
  redis.call('HSET', KEYS[1], ARGV[1], found)
elseif text == ARGV[3] then
  -- Written before, perhaps without a reply: again, so that replicas can be waited for.
  redis.call('HSET', KEYS[1], ARGV[1], found)
end
return found
