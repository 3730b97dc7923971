-- uptime: for how long this server process has run at least, by clocks that cannot be set.
-- KEYS 1 what the server remembers of its start
-- ARGV 1 the server's run id  2 the client's machine  3 its boot clock in ms  4 for how long it has run at least, in ms
-- Returns that time in ms, by what all clients have found so far. The hash has the run id, the longest time found, and when
-- each machine saw this process first: '<machine>=<boot clock in ms>,', up to about fifty.
local key, run, machine, now = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
if redis.call('HGET', key, 'run') ~= run then
  redis.call('DEL', key)
  redis.call('HSET', key, 'run', run)
end
local watch = redis.call('HGET', key, 'watch') or ''
local first = tonumber(string.match(watch, machine .. '=(%d+),'))
if not first or first > now then
  first = now
  watch = string.gsub(watch, machine .. '=%d+,', '')
  if #watch < 3000 then
    redis.call('HSET', key, 'watch', watch .. machine .. '=' .. ARGV[3] .. ',')
  end
end
local ran = math.max(tonumber(redis.call('HGET', key, 'ran') or '0'), tonumber(ARGV[4]), now - first)
redis.call('HSET', key, 'ran', string.format('%.0f', ran))
return ran
