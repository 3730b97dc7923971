-- write: lets a holder pass, and runs its commands in the same step.
-- KEYS 1 marks  2.. the keys of the commands
-- ARGV 1 mode (x, s or p)  2 token  3 claim  4.. for each command: the number of its words, and the words
-- Returns {0, token that won}, {1, replies of the commands ...}, or {-1, stored value} if that is not a mark.
local mode, token, claim = ARGV[1], ARGV[2], ARGV[3]
local stored = redis.call('GET', KEYS[1])
local exclusive, top, owner = '0', '0', '-'
if stored then
  exclusive, top, owner = string.match(stored, '^fm1:(%d+):(%d+):([%x-]+)$')
  if not exclusive then
    return {-1, stored}
  end
end
local mine = tonumber(token)
if mode == 'x' then
  if mine < tonumber(top) or (mine == tonumber(top) and claim ~= owner) then
    return {0, top}
  end
  exclusive = token
elseif mine <= tonumber(exclusive) then
  return {0, exclusive}
end
if mine > tonumber(top) then
  top, owner = token, claim
end
-- The marks first: an error in a command ends the script without undoing anything.
local marks = 'fm1:' .. exclusive .. ':' .. top .. ':' .. owner
if marks ~= stored then
  redis.call('SET', KEYS[1], marks)
end
local replies, at = {1}, 4
while at <= #ARGV do
  local words = tonumber(ARGV[at])
  replies[#replies + 1] = redis.call(unpack(ARGV, at + 1, at + words))
  at = at + words + 1
end
return replies
