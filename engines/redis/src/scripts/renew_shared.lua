-- renew_shared: prolong one hold beside others.
-- KEYS 1 lock  2 queue  3 queue:who  4 queue:readers  5 queue:readers:who  6 counter
-- ARGV 1 claim  2 kind  3 px, or '=' and px if the lease may get shorter  4 token  5 floor  6 no_grants (1 or 0)
-- Returns 0 lost, 1 kept, 2 kept and asked to release.
local floor, no_grants = tonumber(ARGV[5]), ARGV[6] == '1'
local claim, kind, exact = ARGV[1], ARGV[2], string.match(ARGV[3], '^=(%d+)$')
local px = exact or ARGV[3]
-- include lib.lua
local value, present = current()
local answer = 0
if present == kind then
  local token, since, asked, kept =
    string.match(redis.call('HGET', reader_data, claim) or '', '^(%d+):%d+:(%d+):(%d):(.*)$')
  if token == ARGV[4] then
    answer = asked == '1' and 2 or 1
    asked = asked == '2' and '0' or asked
    local expiry = now() + px
    if not exact then
      -- This call may be late.
      expiry = math.max(expiry, tonumber(redis.call('ZSCORE', readers, claim)) or 0)
    end
    redis.call('ZADD', readers, text(expiry), claim)
    redis.call('HSET', reader_data, claim, token .. ':' .. px .. ':' .. since .. ':' .. asked .. ':' .. kept)
    set_expiry(kind)
  end
end
serve(value, present)
return answer
