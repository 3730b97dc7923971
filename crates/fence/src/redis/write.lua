-- write: let a holder pass, and run its commands in the same step.
-- KEYS 1 marks  2.. what the commands touch
-- ARGV 1 mode (x, s or p)  2 token  3 claim  4.. for each command: the count of its words, and the words
-- Answers {0, token that won}, {1, answers of the commands ...}, or {-1, what is stored} if that is no mark.
local mode, token, claim = ARGV[1], ARGV[2], ARGV[3]
local stored = redis.call('GET', KEYS[1])
local exclusive, top, whose = '0', '0', '-'
if stored then
  exclusive, top, whose = string.match(stored, '^fm1:(%d+):(%d+):([%x-]+)$')
  if not exclusive then
    return {-1, stored}
  end
end
local mine = tonumber(token)
if mode == 'x' then
  if mine < tonumber(top) or (mine == tonumber(top) and claim ~= whose) then
    return {0, top}
  end
  exclusive = token
elseif mine <= tonumber(exclusive) then
  return {0, exclusive}
end
if mine > tonumber(top) then
  top, whose = token, claim
end
-- The marks first: an error in a command ends the script, and undoes nothing.
local marks = 'fm1:' .. exclusive .. ':' .. top .. ':' .. whose
if marks ~= stored then
  redis.call('SET', KEYS[1], marks)
end
local answers, at = {1}, 4
while at <= #ARGV do
  local words = tonumber(ARGV[at])
  answers[#answers + 1] = redis.call(unpack(ARGV, at + 1, at + words))
  at = at + words + 1
end
return answers
