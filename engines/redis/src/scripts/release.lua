-- release: the common case of `withdraw`: the claim holds, alone, and nobody is in line.
-- KEYS 1 lock  2 line
-- ARGV 1 'fl1:' and the claim
-- Answers 1 released, 0 if it is another case.
-- It reads no more of the value than it needs; numbers as text, which Lua would have to make of them.
if redis.call('GETRANGE', KEYS[1], '0', '35') == ARGV[1] and redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('DEL', KEYS[1])
  return 1
end
return 0
