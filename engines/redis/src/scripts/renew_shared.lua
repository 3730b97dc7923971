-- renew_shared: prolong one hold beside others.
-- KEYS 1 lock  2 line  3 line:who  4 line:readers  5 line:readers:who  6 counter
-- ARGV 1 claim  2 kind  3 px  4 token  5 floor  6 shut (1 or 0)
-- Answers 0 lost, 1 kept, 2 kept and asked to let go.
local floor, shut = tonumber(ARGV[5]), ARGV[6] == '1'
local claim, kind, px = ARGV[1], ARGV[2], ARGV[3]
-- include lib.lua
local value, present = holder()
local answer = 0
if present == kind then
  local token, since, asked, kept =
    string.match(redis.call('HGET', reading, claim) or '', '^(%d+):%d+:(%d+):(%d):(.*)$')
  if token == ARGV[4] then
    answer = asked == '1' and 2 or 1
    asked = asked == '2' and '0' or asked
    redis.call('ZADD', readers, text(now() + px), claim)
    redis.call('HSET', reading, claim, token .. ':' .. px .. ':' .. since .. ':' .. asked .. ':' .. kept)
    settle(kind)
  end
end
advance(value, present)
return answer
