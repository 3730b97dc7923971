-- release: the common case of `withdraw`: the claim is exclusive and holds, and there is no queue.
-- KEYS 1 lock  2 queue
-- ARGV 1 'fl1:' and the claim
-- Returns 1 released, 0 in another case.
-- It reads only the part that it needs. The numbers are text, since Lua would have to format them.
if redis.call('GETRANGE', KEYS[1], '0', '35') == ARGV[1] and redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('DEL', KEYS[1])
  return 1
end
return 0
